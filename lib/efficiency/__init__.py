"""What a model costs to keep and to run: counted and timed, at the shapes of the papers and on trained students."""
