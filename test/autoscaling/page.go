package main

// page is docs/autoscaling.md up to the pictures; TABLE stands for the rows.
const page = `# Autoscaling on concurrency and requests a second

<!-- made by go run ./test/autoscaling; don't edit -->

Replicas follow the load as they do under Knative's pod autoscaler (KPA), with Knative's
annotations, defaults and limits, and without Knative. [scaling.md](scaling.md) says how to use it.

Every second the gateway says how many requests are in flight for a revision and how many began.
Every two seconds ` + "`internal/scale`" + ` averages them over a stable window (60 s) and a panic
window (6 s), divides by what one replica is meant to carry (100 requests in flight or 200 a
second, of which 70 % are aimed at), and rounds up. When the panic window wants twice what is
ready, it panics: it follows the greater of both windows and doesn't go down until a stable
window has passed. Rates, a delay, bounds, initial and activation scale limit the result. The
last replica goes when nothing was wanted for a stable window, and the first demand brings it
back at once. Each decision carries its reasons.

## Ours and Knative's

Each trace was run through Knative's own code in virtual time (` + "`tools/kpa-golden`" + `), and
its load and ready replicas through ours. "Time to zero" counts from the last demand. One value
stands where both agree; the last column counts the decisions with equal replicas.

| trace | load | peak | peak reached at | time to zero | equal decisions |
|---|---|---|---|---|---|
TABLE

The same recordings are a test of ` + "`internal/scale`" + `: wish, mode, both averages, excess
burst and whether traffic must pass the gateway are equal too, at each decision that has data.
Of 6,000 traces made by chance, with settings made by chance, none gave a difference either
(1.5 million decisions, at Knative v0.51.0; ` + "`tools/kpa-golden/README.md`" + ` says how to look further).

## Where we differ, on purpose

- **No data is not zero.** While the latest sample is older than 10 s the number of replicas
  stays as it is, and the decision says so. Knative goes on averaging what is left of its window,
  and with ` + "`target-burst-capacity: \"-1\"`" + ` it takes silence for zero load: see "blackout"
  and "blackout-proxied". On all that is reported we decide as Knative does.
- **Held requests count at once.** A request that waits for a revision at zero makes one replica,
  however small its share of a window is.
- **Bounds hold without data.** A minimum that is raised, or a maximum that is lowered, is followed
  though nothing is known of the load.
- **A start that fails isn't given up without data.** Knative takes the replicas away after the
  progress deadline even if it never had a sample.

## Other metrics

Any other metric is scaled on as Kubernetes' HorizontalPodAutoscaler does: ` + "`Value`" + `,
` + "`AverageValue`" + ` and ` + "`Utilization`" + ` targets with a tolerance of 10 %, the highest of
several metrics, no way down while one of them is missing, and ` + "`behavior`" + ` with its policies
and stabilization windows. We differ where Kubernetes would go down although nothing is ready to
be measured, where its floating-point percentages round 110 up to 111, where a policy looks back
further than those of the other direction, whose changes it has forgotten by then, and at zero,
where demand always makes one replica. A metric that only some replicas tell is enough to go up on.
[scaling.md](scaling.md) says where metrics come from.

## The traces
`
