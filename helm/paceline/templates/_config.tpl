{{/* The services' own YAML file: what the operator set, and what follows from the chart. */}}
{{- define "paceline.config" -}}
{{- $values := .root.Values -}}
{{- $derived := dict "host" $values.listen "port" .load.port "health_port" $values.healthPort "grace_s" .load.values.drainS -}}
{{- if $values.metrics.enabled -}}{{- $_ := set $derived "metrics_port" $values.metrics.port -}}{{- end -}}
{{- if eq .load.tier "drafter" -}}
  {{- with $values.lanePort -}}{{- $_ := set $derived "lane_port" . -}}{{- end -}}
{{- end -}}
{{- $taken := list (int .load.port) -}}
{{- range $each := list (list "healthPort" "health_port") (list "metrics.port" "metrics_port") (list "lanePort" "lane_port") -}}
  {{- with index $derived (last $each) -}}
    {{- if has (int .) $taken -}}
      {{- fail (printf "%s: %d is another port of %ss already" (first $each) (int .) $.load.tier) -}}
    {{- end -}}
    {{- $taken = append $taken (int .) -}}
  {{- end -}}
{{- end -}}
{{- if and $values.tracing.enabled (ne .load.tier "drafter") -}}
  {{- $sampling := $values.tracing.sampling -}}
  {{- $_ := set $derived "tracing" (dict "endpoint" $values.tracing.otlpEndpoint "sample_ratio" $sampling.requests "round_ratio" $sampling.rounds) -}}
{{- end -}}
{{- if and (ne .load.tier "drafter") (include "paceline.storePlain" .root) -}}
  {{- $_ := set $derived "store_insecure" true -}}
{{- end -}}
{{- $models := include "paceline.models" . | fromJsonArray -}}
{{- if eq .load.tier "gateway" -}}
  {{- $_ := set $derived "verifiers" (list (include "paceline.target" (dict "root" .root "tier" "verifier" "port" 7071))) -}}
  {{- if include "paceline.hasPools" $values.drafter -}}
    {{- $_ := set $derived "drafters" (list (include "paceline.target" (dict "root" .root "tier" "drafter" "port" 7072))) -}}
  {{- end -}}
  {{- $locations := list -}}
  {{- range $models -}}{{- $locations = append $locations (include "paceline.model.location" .) -}}{{- end -}}
  {{- if $locations -}}{{- $_ := set $derived "models" $locations -}}{{- end -}}
  {{- if $values.tls.fleet.existingSecret -}}
    {{- $_ := set $derived "fleet_tls" (include "paceline.fleetTls" $values | fromJson) -}}
  {{- else if $values.insecure -}}
    {{- $_ := set $derived "insecure" true -}}
  {{- end -}}
  {{- if $values.tls.public.existingSecret -}}
    {{- $tls := dict "cert" "/etc/paceline-public/tls.crt" "key" "/etc/paceline-public/tls.key" -}}
    {{- if $values.tls.public.clientCertificates -}}{{- $_ := set $tls "ca" "/etc/paceline-public/ca.crt" -}}{{- end -}}
    {{- $_ := set $derived "tls" $tls -}}
  {{- end -}}
  {{- if $values.auth.existingSecret -}}{{- $_ := set $derived "auth" (dict "tokens" (printf "/etc/paceline-auth/%s" $values.auth.key)) -}}{{- end -}}
{{- else -}}
  {{- $model := first $models -}}
  {{- $_ := set $derived "pool" .load.pool -}}
  {{- $_ := set $derived "model" (include "paceline.model.location" $model) -}}
  {{- with $model.name -}}{{- $_ := set $derived "name" . -}}{{- end -}}
  {{- with $values.tls.fleet.existingSecret -}}{{- $_ := set $derived "tls" (include "paceline.fleetTls" $values | fromJson) -}}{{- end -}}
{{- end -}}
{{- with include "paceline.unprotected" . -}}
  {{- if not $values.insecure -}}
    {{- fail (printf "%s: %s is needed; or set insecure: true, where everybody who can reach the pods may use them and read along" $.load.tier .) -}}
  {{- end -}}
  {{- $_ := set $derived "insecure" true -}}
{{- end -}}
{{- /* These where it does not set them, too: NetworkPolicies and ports would not follow. */ -}}
{{- $keys := list "metrics_port" "lane_port" "store_url" "tracing.endpoint" -}}
{{- range $key, $value := $derived -}}
  {{- if kindIs "map" $value -}}
    {{- range $inner := keys $value -}}{{- $keys = append $keys (printf "%s.%s" $key $inner) -}}{{- end -}}
  {{- else -}}
    {{- $keys = append $keys $key -}}
  {{- end -}}
{{- end -}}
{{- range $key := uniq $keys -}}
  {{- $path := splitList "." $key -}}
  {{- $group := eq (len $path) 1 | ternary $.load.values.config (index $.load.values.config (first $path) | default dict) -}}
  {{- if hasKey $group (last $path) -}}
    {{- fail (printf "%s config.%s: the chart sets it; see values.yaml for what it follows from" $.load.name $key) -}}
  {{- end -}}
{{- end -}}
{{- toYaml (merge $derived .load.values.config) -}}
{{- end -}}

{{/* All workers of a tier, as a gateway is told: (dict "root" $ "tier" tier "port" port). */}}
{{- define "paceline.target" -}}
{{- $service := printf "%s-%s" (include "paceline.fullname" .root) .tier -}}
{{- if eq .root.Values.discovery "kubernetes" -}}
kubernetes:{{ .root.Release.Namespace }}/{{ $service }}:grpc
{{- else -}}
dns:{{ $service }}.{{ .root.Release.Namespace }}.svc:{{ .port }}
{{- end -}}
{{- end -}}

{{/* The fleet's certificates: both sides of every call among services. */}}
{{- define "paceline.fleetTls" -}}
{{- toJson (dict "cert" "/etc/paceline-fleet/tls.crt" "key" "/etc/paceline-fleet/tls.key" "ca" "/etc/paceline-fleet/ca.crt" "server_name" .tls.fleet.serverName) -}}
{{- end -}}

{{/* Whether the store may be asked in plaintext: the chart's own, which only NetworkPolicies keep,
     and another one where that is said. */}}
{{- define "paceline.storePlain" -}}
{{- $said := or .Values.store.insecure .Values.insecure -}}
{{- if .Values.store.existingSecret -}}
{{- if $said -}}true{{- end -}}
{{- else if hasPrefix "redis:" .Values.store.url -}}
{{- if not $said -}}
{{- fail "store.url: rediss:// is needed; or set store.insecure: true, where everybody on the way may read along" -}}
{{- end -}}
true
{{- else if include "paceline.ownStore" . -}}
true
{{- end -}}
{{- end -}}

{{/* What is missing for a workload to know its callers; empty where nothing is. */}}
{{- define "paceline.unprotected" -}}
{{- $values := .root.Values -}}
{{- if ne .load.tier "gateway" -}}
{{- if not $values.tls.fleet.existingSecret -}}tls.fleet.existingSecret{{- end -}}
{{- else if not $values.tls.public.existingSecret -}}
tls.public.existingSecret
{{- else if not (or $values.tls.public.clientCertificates $values.auth.existingSecret (dig "auth" "jwks" "" .load.values.config)) -}}
auth.existingSecret, gateway.config.auth.jwks or tls.public.clientCertificates
{{- end -}}
{{- end -}}
