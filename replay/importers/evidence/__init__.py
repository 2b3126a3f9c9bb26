"""Tells what people have when it has happened: logs of brokers and clients, and what tools print.
Each line that says something about a group becomes one statement, with its time and place.
"""
