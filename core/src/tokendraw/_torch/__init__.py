"""What tokendraw needs of torch beside its operations: importing it, uploads, forks, graphs, threads."""
