"""Workers of known speed: real services on small models that take the time they are told.

Waiting costs no processor time, so that a whole fleet of them runs on a small machine.
"""
