"""EAGLE-3 heads (Li et al., 2025): their files, and what drafts with them on which device."""
