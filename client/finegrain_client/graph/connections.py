"""Computes which subtasks of two connected operators exchange data, and how many network buffers
they need.

A task needs network buffers for each edge that connects it with other tasks:

- for each input edge, `network_buffers_per_channel` for each channel, and
  `network_floating_buffers_per_gate` once;
- for each output edge, one buffer for each subpartition.

A task has one channel for each producer subtask from which it reads. It has one subpartition for
each consumer subtask for which it writes. If the subtasks of an operator have different numbers of
channels or subpartitions, the largest number counts for all subtasks.

Example: an all-to-all edge connects 4 subtasks of a producer with 3 subtasks of a consumer. Each
consumer subtask has 4 channels and needs 4 x 2 + 8 = 16 buffers. Each producer subtask has 3
subpartitions and needs 3 buffers.
"""

from __future__ import annotations

from finegrain_client.graph.values import JobOptions, Pattern


def producers_of(pattern: Pattern, index: int, producers: int, consumers: int) -> range:
    """Returns the indexes of the producer subtasks from which one consumer subtask reads.

    Args:
        pattern: the pattern by which the subtasks are connected.
        index: subtask of the consumer.
        producers: parallelism of the producer.
        consumers: parallelism of the consumer.
    """
    if pattern is Pattern.ALL_TO_ALL:
        return range(producers)
    first = index * producers // consumers
    # If there are more consumers than producers, several consumers read from the same producer.
    # Without `max`, some consumers would have an empty range.
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
