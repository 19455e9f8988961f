"""What work costs and what may be spent: pure. Times are passed in, money is exact.

Amounts are `decimal.Decimal` with a named unit (`USD`, `EUR`, `gpu-hours`, `cpu-hours`), never a
binary fraction; times are seconds since the epoch (UTC) and aware datetimes. Start reading at
`gate` (what may be committed), `ledger` (what was spent) and `metering` (what a node cost whom).
"""
