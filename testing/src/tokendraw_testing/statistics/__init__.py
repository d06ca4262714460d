"""Statistics: draws against their distribution, in two looks with a stated rate of false alarms."""
