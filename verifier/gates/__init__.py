"""Whether drafts pay at all: found by doing with and without them in turns."""
