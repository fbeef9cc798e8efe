{{/*
Every Deployment of the chart as JSON: [{tier, pool, name, port, values}], where values are those of
the pool over its tier's over those of `pods`. All other templates range over this list.
*/}}
{{- define "paceline.workloads" -}}
{{- $name := include "paceline.fullname" . -}}
{{- $gateway := mustMergeOverwrite (deepCopy .Values.pods) (deepCopy .Values.gateway) -}}
{{- $loads := list (dict "tier" "gateway" "pool" "" "name" (printf "%s-gateway" $name) "port" 7070 "values" $gateway) -}}
{{- range $tier, $port := dict "verifier" 7071 "drafter" 7072 -}}
  {{- $block := index $.Values $tier -}}
  {{- range $pool, $own := $block.pools -}}
    {{- if kindIs "map" $own -}}
      {{- $values := mustMergeOverwrite (deepCopy $.Values.pods) (deepCopy $block.defaults) (deepCopy $own) -}}
      {{- $loads = append $loads (dict "tier" $tier "pool" $pool "name" (printf "%s-%s-%s" $name $tier $pool) "port" $port "values" $values) -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- toJson $loads -}}
{{- end -}}

{{/* Whether a tier has any: a pool that is null is none. */}}
{{- define "paceline.hasPools" -}}
{{- if without (values (.pools | default dict)) nil -}}true{{- end -}}
{{- end -}}

{{/* How long a rollout may be without progress. A new pod may wait for the GPU of the one before it,
     for all its grace, and starts then; one that is ready counts after minReadySeconds; the rest is
     for nodes and images. Of one workload: (dict "root" $ "load" workload). */}}
{{- define "paceline.deadlineS" -}}
{{- $values := .load.values -}}
{{- add $values.startupS (include "paceline.graceS" $values) (include "paceline.minReadyS" . | default 0) 300 -}}
{{- end -}}

{{/* How long a worker found by DNS is ready before it counts, of the same; empty for all others. Gateways
     look names up every so often, and name servers keep for 30 s what they have said. */}}
{{- define "paceline.minReadyS" -}}
{{- if and .load.pool (eq .root.Values.discovery "dns") -}}
{{- add 30 (ceil (.root.Values.gateway.config.dns_interval_s | default 5)) 5 -}}
{{- end -}}
{{- end -}}

{{- define "paceline.graceS" -}}
{{- add .preStopS .drainS .marginS -}}
{{- end -}}

{{/* Whether a source needs the hub: (dict "models" list of models). */}}
{{- define "paceline.usesHub" -}}
{{- range .models -}}{{- if or .hub .download -}}true{{- end -}}{{- end -}}
{{- end -}}

{{/* All models of a workload: a gateway has several, a worker one. */}}
{{- define "paceline.models" -}}
{{- if eq .load.tier "gateway" -}}
{{- $models := list -}}
{{- range $key, $model := .load.values.models -}}
{{- if $model -}}
{{- $models = append $models (mustMergeOverwrite (dict "key" $key) (deepCopy $model)) -}}
{{- end -}}
{{- end -}}
{{- toJson $models -}}
{{- else -}}
{{- $sources := list -}}
{{- range $source := list "path" "hub" "pvc" "oci" "download" -}}
{{- if index $.load.values.model $source -}}{{- $sources = append $sources $source -}}{{- end -}}
{{- end -}}
{{- if ne (len $sources) 1 -}}
{{- fail (printf "%s.pools.%s.model: exactly one of path, hub, pvc, oci and download is needed, got %d" .load.tier .load.pool (len $sources)) -}}
{{- end -}}
{{- $model := mustMergeOverwrite (dict "key" "model") (deepCopy .load.values.model) -}}
{{- $volume := or $model.pvc $model.oci -}}
{{- if and $volume (not (or $model.name ($volume.path | default "" | trimAll "/"))) -}}
{{- fail (printf "%s.pools.%s.model.name: is needed where %s has no path to take it from" .load.tier .load.pool (first $sources)) -}}
{{- end -}}
{{- toJson (list $model) -}}
{{- end -}}
{{- end -}}

{{/* Where a model is, as the service is told. */}}
{{- define "paceline.model.location" -}}
{{- if .path -}}
{{ .path }}
{{- else if .hub -}}
{{ .hub }}
{{- else if .pvc -}}
{{ printf "/models/%s/%s" .key (.pvc.path | default "" | trimAll "/") | trimSuffix "/" }}
{{- else if .oci -}}
{{ printf "/models/%s/%s" .key (.oci.path | default "" | trimAll "/") | trimSuffix "/" }}
{{- else if .download -}}
{{ printf "/models/%s/%s" .key (base .download.repository) }}
{{- end -}}
{{- end -}}

{{/* Whether the chart brings its store: not where `store` names one, which pods are told of. */}}
{{- define "paceline.ownStore" -}}
{{- if and .Values.valkey.enabled (not (or .Values.store.url .Values.store.existingSecret)) -}}true{{- end -}}
{{- end -}}
