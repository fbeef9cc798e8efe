"""What Paceline does, in figures; what is compared is measured in turns.

`paceline bench` (`commands`, `run`) compares every way to decode. Programs of their own, each
`python -m bench.NAME` and with a `--help`, measure one thing:

- `fleet`: how near placement comes to the best assignment of sessions to workers;
- `lengths`: what methods bring behind texts of several lengths;
- `pool_warmth`: lookahead with an empty shared pool of n-grams, and with a warm one;
- `promise`: one seed, one text, with every method and hybrid;
- `quantized`: what rounded weights cost in quality and gain in time;
- `roofline`: how near steps come to what memory and arithmetic allow;
- `telemetry`: what metrics and traces cost;
- `traffic`: how long users wait where requests come as they please;
- `turns`: time to the first token in growing conversations;
- `window_cost`: what a step costs with lookahead's window.

`random_model` and `widened_model` write models of a size to measure with. `machine` and
`step_times` measure within a process of their own, for those above.
"""
