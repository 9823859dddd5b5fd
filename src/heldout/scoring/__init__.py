"""Ready-made graders, and one way to compose them."""
