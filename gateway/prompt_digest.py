"""Whether a text that goes on follows the prompt that it began with.

What is told of a prompt when a generation is resumed is its text or its messages. Another gateway
may make other ids of them: its tokenizer, chat template or clock is another one.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from common.errors import FailedPrecondition
from gateway.request import Resume


def digest(ids: Sequence[int]) -> bytes:
    """Hash of a prompt's ids."""
    return hashlib.sha256(array("I", ids)).digest()


def check_digest(resume: Resume | None, found: bytes) -> None:
    """Checks that what is resumed follows a prompt.

    Args:
        resume: What there is of the text; None, or one without a digest, follows any.
        found: Digest of the prompt, as it is here.

    Raises:
        FailedPrecondition: It follows another one.
    """
    if resume is None or not resume.ids or resume.prompt_digest in (b"", found):
        return
    raise FailedPrecondition(
        "resume.prompt_digest: the prompt has other tokens here than where the text began, as with "
        "another chat template or tokenizer: the text cannot go on; begin it anew"
    )
