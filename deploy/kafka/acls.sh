#!/usr/bin/env bash
# A user for each role, and its rights, for the group `orders` (docs/deploy.md#tls-passwords-and-acls).
# Change the names of topics and of the group first. Passwords are in worker.password, member.password and
# reader.password; admin.properties has the connection of an administrator.
#
#   bash deploy/kafka/acls.sh broker1:9092 admin.properties
set -euo pipefail
brokers=$1 admin=$2

for user in worker member reader; do
    kafka-configs.sh --bootstrap-server "$brokers" --command-config "$admin" --alter \
        --entity-type users --entity-name $user --add-config "SCRAM-SHA-512=[password=$(cat $user.password)]"
done
acl() { user=$1; shift; kafka-acls.sh --bootstrap-server "$brokers" --command-config "$admin" --add --allow-principal User:$user "$@"; }
log="--topic equipoise.facts --topic equipoise.decisions --topic equipoise.checkpoints"

acl worker --operation Read --operation Write --operation DescribeConfigs $log
acl worker --operation Read --group equipoise.worker
acl worker --operation Create --topic equipoise. --resource-pattern-type prefixed
acl worker --operation Read --operation Write --operation DescribeConfigs --topic equipoise.bases
acl worker --operation Delete --topic equipoise.facts --topic equipoise.decisions
acl worker --operation Describe --topic orders.in --topic orders.counts

acl member --operation Read --operation Write --topic equipoise.facts
acl member --operation Read --topic equipoise.decisions --topic equipoise.checkpoints --topic equipoise.bases
acl member --operation Read --topic orders.in
acl member --operation Read --operation Write --operation DescribeConfigs --topic orders.counts
acl member --operation Write --topic orders.totals
acl member --operation Read --operation Write --operation DescribeConfigs --operation Create --topic orders-positions
acl member --operation Read --group orders
acl member --operation Write --transactional-id orders/ --resource-pattern-type prefixed

acl reader --operation Read $log --topic equipoise.bases
