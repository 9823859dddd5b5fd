"""Small tools and settings that every room uses: configuration, prices, text, secrets, async, chat.

Nothing here knows what an eval is. What only one room uses belongs to that room.
"""
