"""Which subtasks of two connected operators exchange data, and how many network buffers they need.

A task needs network memory for its own ends of edges that leave it:

- for each input edge, `network_buffers_per_channel` for each channel, and
  `network_floating_buffers_per_gate` once;
- for each output edge, one buffer for each subpartition.

A channel is one producer's subtask that the task reads from. A subpartition is one consumer's
subtask that it writes for. Where subtasks of one operator have different numbers of them, the
largest number counts for all.

Example: an all-to-all edge from 4 to 3 subtasks. Each consumer has 4 channels: 4 x 2 + 8 = 16
buffers. Each producer has 3 subpartitions: 3 buffers.
"""

from __future__ import annotations

from finegrain_client.graph.values import JobOptions, Pattern


def producers_of(pattern: Pattern, index: int, producers: int, consumers: int) -> range:
    """Returns the producer's subtasks that one subtask of the consumer reads from.

    Args:
        pattern: how the operators are connected.
        index: subtask of the consumer.
        producers: parallelism of the producer.
        consumers: parallelism of the consumer.
    """
    if pattern is Pattern.ALL_TO_ALL:
        return range(producers)
    first = index * producers // consumers
    # With more consumers than producers, the range would be empty for some; several consumers then
    # read from the same producer.
    return range(first, max(first + 1, (index + 1) * producers // consumers))


def channels(pattern: Pattern, producers: int, consumers: int) -> int:
    """Returns the largest number of input channels that a subtask of the consumer has."""
    return producers if pattern is Pattern.ALL_TO_ALL else -(-producers // consumers)


def subpartitions(pattern: Pattern, producers: int, consumers: int) -> int:
    """Returns the largest number of subpartitions that a subtask of the producer has."""
    return channels(pattern, consumers, producers)


def input_buffers(channel_count: int, options: JobOptions) -> int:
    """Returns the network buffers of one subtask for one input edge."""
    per_channel = options.network_buffers_per_channel
    return per_channel * channel_count + options.network_floating_buffers_per_gate
