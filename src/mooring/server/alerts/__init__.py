"""What is wrong, in words, and who is told.

`conditions` looks at the fleet (pure), `ledger` says which of it is news (pure), `settings` is what
the configuration says, `webhook` tells it, and `running` goes round.
"""
