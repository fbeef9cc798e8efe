"""What the bench compares with: one file an engine, each run in a process of its own."""
