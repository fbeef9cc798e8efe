{{- define "paceline.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 33 | trimSuffix "-" -}}
{{- end -}}

{{/* The longest name made of it is this, a tier, a pool of at most 20 characters and two dashes: 63. */}}
{{- define "paceline.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 33 | trimSuffix "-" -}}
{{- else if contains (include "paceline.name" .) .Release.Name -}}
{{- .Release.Name | trunc 33 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "paceline.name" .) | trunc 33 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "paceline.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "paceline.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "paceline.selector" -}}
app.kubernetes.io/name: {{ include "paceline.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{/* Of one workload: (dict "root" $ "load" workload). */}}
{{- define "paceline.load.selector" -}}
{{ include "paceline.selector" .root }}
app.kubernetes.io/component: {{ .load.tier }}
{{- with .load.pool }}
paceline/pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "paceline.load.labels" -}}
{{ include "paceline.labels" .root }}
app.kubernetes.io/component: {{ .load.tier }}
{{- with .load.pool }}
paceline/pool: {{ . | quote }}
{{- end }}
{{- end -}}

{{- define "paceline.serviceAccount" -}}
{{- $account := ternary "gateway" "worker" (eq .load.tier "gateway") -}}
{{- $given := index .root.Values.serviceAccount $account -}}
{{- if $given -}}
{{ $given }}
{{- else if .root.Values.serviceAccount.create -}}
{{ include "paceline.fullname" .root }}-{{ $account }}
{{- else -}}
default
{{- end -}}
{{- end -}}

{{/* All pods of a tier: (dict "root" $ "tier" tier). */}}
{{- define "paceline.tierSelector" -}}
matchLabels:
  {{- include "paceline.selector" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .tier }}
{{- end -}}

{{- define "paceline.valkeyName" -}}
{{- include "paceline.fullname" . }}-valkey
{{- end -}}

{{/* The chart's own store: its Service, its pod and who may reach it. A release may have several, as a
     chart of which this one is a part under several names. */}}
{{- define "paceline.valkeySelector" -}}
app.kubernetes.io/name: valkey
app.kubernetes.io/instance: {{ include "paceline.fullname" . | quote }}
app.kubernetes.io/component: store
{{- end -}}
