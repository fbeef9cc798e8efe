"""Assistants: small decoders that read the keys of the model they draft for."""
