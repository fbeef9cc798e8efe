{{/* No registry goes before a repository that begins with one, as container runtimes tell it. */}}
{{- define "paceline.image" -}}
{{- $image := .load.values.image -}}
{{- $common := .root.Values.image -}}
{{- if not (regexMatch "^(localhost|[^/]*[.:][^/]*)/" $image.repository) -}}
{{- with $image.registry | default $common.registry -}}{{ . }}/{{- end -}}
{{- end -}}
{{ $image.repository }}
{{- if $image.digest -}}
@{{ $image.digest }}
{{- else -}}
:{{ $image.tag | default $common.tag | default .root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* What extraEnv names is not set by the chart: where objects are applied on the server, no name may
     stand there twice. */}}
{{- define "paceline.env" -}}
{{- $given := .load.values.extraEnv | default list -}}
{{- $names := list -}}
{{- range $given -}}{{- $names = append $names .name -}}{{- end -}}
{{- $env := list -}}
{{- range include "paceline.ownEnv" . | fromYamlArray -}}
{{- if not (has .name $names) -}}{{- $env = append $env . -}}{{- end -}}
{{- end -}}
{{- concat $env $given | toYaml -}}
{{- end -}}

{{- define "paceline.ownEnv" -}}
- {name: HOME, value: /tmp}
{{- $models := include "paceline.models" . | fromJsonArray }}
{{- $hub := false }}
{{- range $models }}{{- if .hub }}{{- $hub = true }}{{- end }}{{- end }}
{{- if $hub }}
- {name: HF_HOME, value: /hub}
{{- include "paceline.hubToken" .root }}
{{- else }}
- {name: HF_HUB_OFFLINE, value: "1"}
{{- end }}
{{- if ne .load.tier "drafter" }}
{{- $variable := printf "PACELINE_%s_STORE_URL" (upper .load.tier) }}
{{- include "paceline.storeEnv" (dict "root" .root "variable" $variable) }}
{{- end }}
{{- end -}}

{{- define "paceline.hubToken" -}}
{{- with .Values.hubToken.existingSecret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $.Values.hubToken.key | quote }}}}
{{- end }}
{{- end -}}

{{- define "paceline.storeEnv" -}}
{{- $values := .root.Values -}}
{{- if $values.store.existingSecret }}
- name: {{ .variable }}
  valueFrom: {secretKeyRef: {name: {{ $values.store.existingSecret | quote }}, key: {{ $values.store.key | quote }}}}
{{- else if $values.store.url }}
- {name: {{ .variable }}, value: {{ $values.store.url | quote }}}
{{- else if include "paceline.ownStore" .root }}
{{- $host := include "paceline.valkeyName" .root }}
{{- with $values.valkey.existingSecret }}
- name: STORE_PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: {{ $values.valkey.key | quote }}}}
- {name: {{ $.variable }}, value: "redis://:$(STORE_PASSWORD)@{{ $host }}:6379/0"}
{{- else }}
- {name: {{ .variable }}, value: "redis://{{ $host }}:6379/0"}
{{- end }}
{{- end }}
{{- end -}}

{{- define "paceline.volumes" -}}
- name: config
  configMap: {name: {{ .load.name }}}
- name: tmp
  emptyDir: {}
{{- range $name, $secret := include "paceline.secrets" . | fromJson }}
- name: {{ $name }}
  secret: {secretName: {{ $secret | quote }}, defaultMode: 288}  # 0440, for the pod's group
{{- end }}
{{- if .load.values.shm }}
- name: shm
  emptyDir: {{ toJson (merge (dict "medium" "Memory") .load.values.shm) }}
{{- end }}
{{- range include "paceline.models" . | fromJsonArray }}
{{- if .pvc }}
- name: model-{{ .key }}
  persistentVolumeClaim: {claimName: {{ .pvc.claimName | quote }}, readOnly: true}
{{- else if .oci }}
- name: model-{{ .key }}
  image: {reference: {{ .oci.reference | quote }}, pullPolicy: {{ .oci.pullPolicy | default "IfNotPresent" }}}
{{- else if .download }}
- name: model-{{ .key }}
  emptyDir: {{ pick .download "sizeLimit" | toJson }}
{{- else if .hub }}
- name: hub
{{- if .cache.claimName }}
  persistentVolumeClaim: {claimName: {{ .cache.claimName | quote }}}
{{- else }}
  emptyDir: {{ pick .cache "sizeLimit" | toJson }}
{{- end }}
{{- end }}
{{- end }}
{{- with .load.values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "paceline.mounts" -}}
- {name: config, mountPath: /etc/paceline, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- range $name, $secret := include "paceline.secrets" . | fromJson }}
- {name: {{ $name }}, mountPath: /etc/paceline-{{ $name }}, readOnly: true}
{{- end }}
{{- if .load.values.shm }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- range include "paceline.models" . | fromJsonArray }}
{{- if or .pvc .oci }}
- {name: model-{{ .key }}, mountPath: /models/{{ .key }}, readOnly: true}
{{- else if .download }}
- {name: model-{{ .key }}, mountPath: {{ include "paceline.model.location" . }}, readOnly: true}
{{- else if .hub }}
- {name: hub, mountPath: /hub}
{{- end }}
{{- end }}
{{- with .load.values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Fetch models before the service starts: `download` sources. A gateway needs the tokenizer only, a
     worker what its loader reads. */}}
{{- define "paceline.initContainers" -}}
{{- range include "paceline.models" . | fromJsonArray }}
{{- if .download }}
- name: download-{{ .key }}
  image: {{ include "paceline.image" $ | quote }}
  imagePullPolicy: {{ $.load.values.image.pullPolicy | default $.root.Values.image.pullPolicy }}
  # Through timeout, which hands SIGTERM on: a first process that does not handle it gets none.
  command:
    - timeout
    - "0"
    - hf
    - download
    - {{ .download.repository | quote }}
    {{- with .download.revision }}
    - --revision={{ . }}
    {{- end }}
    - --local-dir={{ include "paceline.model.location" . }}
    {{- if eq $.load.tier "gateway" }}
    - --include=*.json
    - --include=*.jinja
    - --exclude=*.index.json
    {{- else }}
    - --include=*.json
    - --include=*.safetensors
    - --include=*.jinja
    - --include=*.model
    - --include=*.txt
    {{- end }}
  env:
    - {name: HOME, value: /tmp}
    - {name: HF_HOME, value: /tmp/hub}
    {{- /* What is set already and what is for the service alone: that it is to fetch nothing. */}}
    {{- $not := list "HOME" "HF_HOME" "HF_HUB_OFFLINE" "TRANSFORMERS_OFFLINE" }}
    {{- with include "paceline.hubToken" $.root | trim }}
    {{- . | nindent 4 }}
    {{- $not = append $not "HF_TOKEN" }}
    {{- end }}
    {{- range $.load.values.extraEnv }}
    {{- if not (has .name $not) }}
    {{- list . | toYaml | nindent 4 }}
    {{- end }}
    {{- end }}
  {{- with $.load.values.resources }}
  resources: {{- toYaml . | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
    - {name: model-{{ .key }}, mountPath: {{ include "paceline.model.location" . }}}
    {{- with $.load.values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  securityContext: {{- toYaml $.load.values.containerSecurityContext | nindent 4 }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "paceline.probe" -}}
grpc: {port: {{ .root.Values.healthPort }}, service: {{ .service }}}
timeoutSeconds: 5
{{- end -}}

{{- define "paceline.spread" -}}
{{- range .load.values.topologySpreadConstraints }}
{{- $own := dict "labelSelector" (dict "matchLabels" (include "paceline.load.selector" $ | fromYaml)) }}
- {{ toYaml (hasKey . "labelSelector" | ternary . (merge (deepCopy .) $own)) | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{/* The Secrets a workload reads as files: {volume: Secret}. */}}
{{- define "paceline.secrets" -}}
{{- $values := .root.Values -}}
{{- $secrets := dict -}}
{{- with $values.tls.fleet.existingSecret -}}{{- $_ := set $secrets "fleet" . -}}{{- end -}}
{{- if eq .load.tier "gateway" -}}
{{- with $values.tls.public.existingSecret -}}{{- $_ := set $secrets "public" . -}}{{- end -}}
{{- with $values.auth.existingSecret -}}{{- $_ := set $secrets "auth" . -}}{{- end -}}
{{- end -}}
{{- toJson $secrets -}}
{{- end -}}
