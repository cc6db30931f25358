"""Learning prompts: the paper, the methods it is compared with, and the loop that trains them."""
