"""Prompt learners that PBPrompt is compared with, akin ones in one file."""
