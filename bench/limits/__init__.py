"""What a socket can do with no framework around it: the physical limits that results are shown beside."""
