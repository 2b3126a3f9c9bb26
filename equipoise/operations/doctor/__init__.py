"""Checks whether a deployment can work: what each check finds, and the fix.

- `finding`: a finding
- `access`: the ACLs that workers, members and readers need
- `asking`: what only the doctor asks brokers
- `brokers`: brokers, versions, rights, clock, times
- `topics`: topics of the log and of the application, changelogs
- `groups`: session timeouts against a broker's failover
- `machine`: state directories
- `examination`: all of them, one after the other
"""
