"""Multi-token prediction: layers that models bring along to draft behind their own states."""
