"""Training: a small target, a drafter distilled from it, Medusa heads and their tree."""
