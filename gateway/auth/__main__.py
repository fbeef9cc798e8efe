"""`python -m gateway.auth`: makes a token, to be given to a caller, and its line for the file."""

from __future__ import annotations

import secrets

from gateway.auth.token_file import token_hash


def main() -> None:
    """Prints a new token and what stands in the file for it; neither is kept."""
    token = f"pl-{secrets.token_urlsafe(32)}"
    print(f"token:  {token}")
    print(f"sha256: {token_hash(token)}")


if __name__ == "__main__":
    main()
