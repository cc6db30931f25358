"""Looking into a tuned model: heat maps, captions, words, and how its sampled prompts lie."""
