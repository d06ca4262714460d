"""Facts about this machine, asked of torch where it is loaded and of the drivers elsewhere."""
