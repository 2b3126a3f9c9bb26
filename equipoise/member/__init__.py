"""The member client: what an application embeds to be led."""
