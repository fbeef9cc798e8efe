"""Where the workers are: static lists, DNS and Kubernetes behind one interface."""
