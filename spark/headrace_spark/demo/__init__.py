"""`make demo`: this machine's own telemetry through a stream, three consumers, the death of a node, a check.

Each part is a process of its own and knows the others by the Kafka port alone:

    story       starts and stops everything, tells what happens, checks the result     (story.py, check.py)
    feed        reads the machine ten times a second and produces                      (feed.py, telemetry.py)
    live        the newest values with their end-to-end latency                        (live.py)
    state       the current state per device in SQLite, exactly once                   (state.py)
    pipeline    PySpark Structured Streaming: statistics and anomaly flags             (pipeline.py)
    press       idles, then really burns a core when the story says so                 (press.py)

The story talks to its processes by lines: orders on their stdin, reports as JSON on their stdout (reports.py). The end
of stdin means "finish and go", so that none outlives the story, whatever ends it.
"""
