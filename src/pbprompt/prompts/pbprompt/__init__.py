"""PBPrompt: each class is a distribution over prompts, aligned with image patches."""

from pbprompt.prompts.pbprompt.model import PBPrompt as PBPrompt
