"""Medusa heads (Cai et al., 2024): their files, and what guesses with them on which device."""
