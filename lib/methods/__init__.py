"""One file a paper: its loss, its modules, its configuration, one `compress` function."""
