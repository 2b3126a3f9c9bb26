"""What runs members and workers in one process and in virtual time: event loops (`loops`), machines
and processes (`process`), Kafka (`kafka`), and a coordinator in the place of Faust (`coordinator`).
"""
