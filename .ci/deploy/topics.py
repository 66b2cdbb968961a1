"""The topics of Waybill as Strimzi objects.

    topics.py settings CONFIG            a configuration that makes the same topics, for one broker without a login
    topics.py objects CONFIG <JSON       the output of `waybill topics create --dry-run --output json` with it, as KafkaTopics
"""

import json
import sys

import yaml

CLUSTER = "kafka"
NAMESPACE = "kafka"


def main():
    what, path = sys.argv[1:]
    with open(path) as file:
        config = yaml.safe_load(file)
    if what == "settings":
        print(yaml.safe_dump(for_one_broker(config)))
    else:
        for line in sys.stdin:
            print("---\n" + as_yaml(json.loads(line), config["kafka"]["replicationFactor"]))


def for_one_broker(config):
    for key in ["brokers", "properties", "propertyFiles"]:
        config["kafka"].pop(key, None)
    config["kafka"]["replicationFactor"] = 1
    config.get("store", {}).pop("scylla", None)
    return config


def as_yaml(topic, copies):
    # With one broker, the output lacks settings that apply to three; the rule is that of crates/topology/src/topics.rs.
    settings = topic["settings"] | {"min.insync.replicas": str(copies - 1 if copies > 2 else 1)}
    lines = [
        "apiVersion: kafka.strimzi.io/v1",
        "kind: KafkaTopic",
        "metadata:",
        f"  name: {topic['topic']}",
        f"  namespace: {NAMESPACE}",
        "  labels:",
        f"    strimzi.io/cluster: {CLUSTER}",
        "spec:",
        f"  partitions: {topic['partitions']}",
        f"  replicas: {copies}",
        "  config:",
    ]
    # Numbers as numbers, as in Strimzi's own examples.
    return "\n".join(lines + [f"    {key}: {value}" for key, value in sorted(settings.items())])


main()
