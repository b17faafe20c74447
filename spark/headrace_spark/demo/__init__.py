"""`make demo`: this machine's telemetry through a stream, three consumers, the failure of a node, a check.

Each part is a process, and reaches the others through Kafka's port only:

    story       starts and stops everything, shows what happens, checks the result     (story.py, check.py)
    feed        reads the machine ten times a second and produces                      (feed.py, telemetry.py)
    live        the newest values with their end-to-end latency                        (live.py)
    state       the current state per device in SQLite, exactly once                   (state.py)
    pipeline    PySpark Structured Streaming: statistics and anomaly flags             (pipeline.py)
    press       idles, then loads a core when the story orders it                      (press.py)

The story talks to its processes by lines: orders on their stdin, reports as JSON on their stdout (reports.py). The end
of stdin means "finish and exit", so that no process outlives the story, however it ends.
"""
