"""The devices of one host: which slots have shares of them, and which ones a further slot gets."""
