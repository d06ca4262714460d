"""Device code: functions of all stages in ``shared``, then a folder for each stage of a call."""
