"""One file per method. In their formulas f(x) and g(…) are the image and the text tower, s is exp(logit
scale), x is an image and c a class; the letter of a setting stands in its help."""
