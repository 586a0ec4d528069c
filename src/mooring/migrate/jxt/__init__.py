"""From the old keys of tenant configuration to the new (contract T11): a plan, a copy, a check of
it, a bridge while there are programs of both, the cut-over, and the end of the old keys.

    the old format              format · translation (to the new) · rewriting (back)
    what is to be done          plan · decision · view · claiming (names) · indexes · leading
    what was done               ledger (in the store) · verified (in a file)
    doing it                    migration · settling · mending · signposts · deletion · bridge
    how                         reading · progress
"""
