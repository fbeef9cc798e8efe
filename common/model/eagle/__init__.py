"""EAGLE-3 heads (Li et al., 2025): their files, and what drafts with them on which device.

A head is one decoder layer. At position i it reads the target's residual stream at a few layers,
and the token at i + 1:

    x = fc(taps);  a = [norm(e), norm(x)];  r = x + attention(a);  out = r + mlp(norm(r))
    logits of the token at i + 2 = lm norm(out)

Where the target has not been yet, `out` stands for x, and the token is one of the head's own
guesses.
"""
