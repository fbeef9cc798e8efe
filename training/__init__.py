"""Training: a small target, a drafter distilled from it, Medusa heads, their tree, EAGLE heads."""
