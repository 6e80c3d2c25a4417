{{- /* Merges the values of this release over those of all. Each template begins with it, since nothing orders them. */ -}}
{{- define "llm-stage.release" -}}
{{- with .Values.releases }}
{{- with get . $.Release.Name }}
{{- $_ := mergeOverwrite $.Values (deepCopy .) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "llm-stage.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* 48 characters leave room for the suffixes of StatefulSets and jobs. */ -}}
{{- define "llm-stage.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else if contains (include "llm-stage.name" .) .Release.Name }}
{{- .Release.Name | trunc 48 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "llm-stage.name" .) | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- /* Labels that never change, because selectors are immutable. */ -}}
{{- define "llm-stage.selectorLabels" -}}
app.kubernetes.io/name: {{ include "llm-stage.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "llm-stage.labels" -}}
{{- $own := include "llm-stage.selectorLabels" . | fromYaml }}
{{- $_ := set $own "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_" | trunc 63) }}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $own "app.kubernetes.io/part-of" "llm-stage" }}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-") }}
{{- merge $own .Values.commonLabels | toYaml }}
{{- end }}

{{- define "llm-stage.metadata" -}}
name: {{ include "llm-stage.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "llm-stage.labels" . | nindent 2 }}
{{- end }}

{{- define "llm-stage.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- .Values.serviceAccount.name | default (include "llm-stage.fullname" .) }}
{{- else }}
{{- .Values.serviceAccount.name | default "default" }}
{{- end }}
{{- end }}

{{- define "llm-stage.image" -}}
{{- $image := .Values.image.repository }}
{{- with .Values.image.registry }}{{ $image = printf "%s/%s" (trimSuffix "/" .) $image }}{{ end }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $image .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $image (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{- /* The value of a variable as text. Numbers come from YAML as floats, which print as 1e+06. */ -}}
{{- define "llm-stage.text" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{- /* Of several stages in a pod what each has of its own, by name: a key whose value was taken away by null is none. */ -}}
{{- define "llm-stage.stages" -}}
{{- $stages := dict }}
{{- range $name, $own := .Values.stages }}{{ with $own }}{{ $_ := set $stages $name . }}{{ end }}{{ end }}
{{- $stages | toYaml }}
{{- end }}

{{- /* The variables of each stage of a pod, by the name that messages give to where they come from: those of config, and over
them those of the stage. One stage has no name here. */ -}}
{{- define "llm-stage.configs" -}}
{{- $configs := dict }}
{{- range $name, $own := include "llm-stage.stages" . | fromYaml }}
{{- $config := dict "STAGE_NAME" $name }}
{{- range $from := list $.Values.config ($own.config | default dict) }}
{{- range $variable, $value := $from }}
{{- if not (or (kindIs "invalid" $value) (eq $variable "STAGE_NAME")) }}{{ $_ := set $config $variable (include "llm-stage.text" $value) }}{{ end }}
{{- end }}
{{- end }}
{{- $_ := set $configs $name $config }}
{{- end }}
{{- if not $configs }}{{ $_ := set $configs "" .Values.config }}{{ end }}
{{- $configs | toYaml }}
{{- end }}

{{- /* Names of the stages, separated by spaces. */ -}}
{{- define "llm-stage.names" -}}
{{- keys (include "llm-stage.stages" . | fromYaml) | sortAlpha | default (list (.Values.config.STAGE_NAME | default "stage")) | join " " }}
{{- end }}

{{- /* Partitions of the stage that has most. */ -}}
{{- define "llm-stage.partitions" -}}
{{- $most := 1 }}
{{- range include "llm-stage.configs" . | fromYaml }}
{{- $most = max $most (include "llm-stage.text" (.STAGE_PARTITIONS | default 1) | int64) }}
{{- end }}
{{- $most }}
{{- end }}

{{- /* Partitions of all stages. */ -}}
{{- define "llm-stage.allPartitions" -}}
{{- $all := 0 }}
{{- range include "llm-stage.configs" . | fromYaml }}
{{- $all = add $all (include "llm-stage.text" (.STAGE_PARTITIONS | default 1) | int64) }}
{{- end }}
{{- $all }}
{{- end }}

{{- /* Seconds of a Go duration, rounded up. */ -}}
{{- define "llm-stage.seconds" -}}
{{- $units := dict "h" 3600.0 "m" 60.0 "s" 1.0 "ms" 0.001 "us" 0.000001 "µs" 0.000001 "ns" 0.000000001 }}
{{- $sum := 0.0 }}
{{- range regexFindAll "[0-9.]+(ns|us|µs|ms|s|m|h)" . -1 }}
{{- $number := regexFind "^[0-9.]+" . }}
{{- $sum = addf $sum (mulf (float64 $number) (get $units (trimPrefix $number .))) }}
{{- end }}
{{- ceil $sum | int64 }}
{{- end }}

{{- /* A stop waits a quarter longer than STAGE_LLM_TIMEOUT, for the slowest stage of the pod. */ -}}
{{- define "llm-stage.gracePeriod" -}}
{{- $longest := 0 }}
{{- range include "llm-stage.configs" . | fromYaml }}
{{- $call := include "llm-stage.seconds" (include "llm-stage.text" (.STAGE_LLM_TIMEOUT | default "120s")) }}
{{- $stop := mulf 1.25 (float64 $call) | ceil | int64 }}
{{- with .STAGE_STOP_TIMEOUT }}{{ $stop = include "llm-stage.seconds" (include "llm-stage.text" .) | int64 }}{{ end }}
{{- $longest = max $longest $stop }}
{{- end }}
{{- add $longest (int64 .Values.stopMarginSeconds) }}
{{- end }}

{{- /* Bytes of a Kubernetes quantity or a size of the program; empty when it is neither. */ -}}
{{- define "llm-stage.bytes" -}}
{{- $units := dict "" 1.0 "k" 1000.0 "M" 1000000.0 "G" 1000000000.0 "B" 1.0 }}
{{- range $unit, $bytes := dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 }}
{{- $_ := set $units $unit $bytes }}
{{- $_ := set $units (printf "%sB" $unit) $bytes }}
{{- end }}
{{- $text := include "llm-stage.text" . | nospace }}
{{- $unit := regexFind "[a-zA-Z]*$" $text }}
{{- if and (regexMatch "^[0-9.]+[a-zA-Z]*$" $text) (hasKey $units $unit) }}
{{- mulf (trimSuffix $unit $text | float64) (get $units $unit) | floor | int64 }}
{{- end }}
{{- end }}

{{- /* What the batch lane of a partition takes: two batches, and 200 bytes for each row in one; 0 without a lane. Its argument
are the variables of the stage. */ -}}
{{- define "llm-stage.laneRoom" -}}
{{- $on := false }}
{{- range $name, $value := . }}
{{- if and (hasPrefix "STAGE_LANE" $name) (ne (include "llm-stage.text" $value) "") }}{{ $on = true }}{{ end }}
{{- end }}
{{- if $on }}
{{- $rows := mul (include "llm-stage.text" (.STAGE_LANE_ROWS | default 10000) | int64) (include "llm-stage.text" (.STAGE_LANE_OPEN | default 10) | int64) }}
{{- $bytes := include "llm-stage.bytes" (include "llm-stage.text" (.STAGE_LANE_BYTES | default 104857600) | replace "B" "" | replace " " "") | default "104857600" | int64 }}
{{- add (mul 2 $bytes) (mul 200 $rows) }}
{{- else }}0{{ end }}
{{- end }}

{{- /* What a pod needs that serves all partitions of all stages, in bytes: `fixed`, and 1.0625 windows for each of
`partitions`, those without a STAGE_WINDOW_BYTES of their own stage. The sum is that of the program, internal/stage/memory.go. */ -}}
{{- define "llm-stage.memory" -}}
{{- $stages := include "llm-stage.stages" . | fromYaml }}
{{- $fixed := 16777216.0 }}
{{- $shared := 0 }}
{{- range $name, $config := include "llm-stage.configs" . | fromYaml }}
{{- $partitions := include "llm-stage.text" ($config.STAGE_PARTITIONS | default 1) | int64 }}
{{- $pool := include "llm-stage.text" ($config.STAGE_POOL_SIZE | default 16) | int64 }}
{{- $lanes := mul (include "llm-stage.laneRoom" $config | int64) $partitions }}
{{- $fixed = addf $fixed (add 4194304 (mul 131072 $pool) $lanes | float64) }}
{{- with (dig $name "config" dict $stages).STAGE_WINDOW_BYTES }}
{{- $fixed = addf $fixed (mulf 1.0625 (float64 $partitions) (include "llm-stage.bytes" . | int64 | float64)) }}
{{- else }}
{{- $shared = add $shared $partitions }}
{{- end }}
{{- end }}
{{- dict "fixed" (printf "%.0f" $fixed) "partitions" $shared | toYaml }}
{{- end }}

{{- /* The most that STAGE_WINDOW_BYTES may be for a pod that serves all partitions to keep within nine tenths of its memory
limit; empty without a limit. */ -}}
{{- define "llm-stage.windowRoom" -}}
{{- with include "llm-stage.bytes" (((.Values.resources).limits).memory | default "") }}
{{- $memory := include "llm-stage.memory" $ | fromYaml }}
{{- divf (subf (mulf 0.9 (float64 .)) (float64 $memory.fixed)) (mulf 1.0625 (max 1 $memory.partitions | float64)) | floor | int64 }}
{{- end }}
{{- end }}

{{- /* STAGE_WINDOW_BYTES if config has none and the program's default is too much; else empty. */ -}}
{{- define "llm-stage.windowBytes" -}}
{{- $room := include "llm-stage.windowRoom" . }}
{{- if and $room (include "llm-stage.memory" . | fromYaml).partitions (not .Values.config.STAGE_WINDOW_BYTES) (lt (int64 $room) 268435456) }}
{{- printf "%dMiB" (div (int64 $room) 1048576) }}
{{- end }}
{{- end }}

{{- define "llm-stage.maxReplicas" -}}
{{- if .Values.keda.enabled }}
{{- .Values.keda.maxReplicas | default (add1 (include "llm-stage.allPartitions" . | int64)) | int64 }}
{{- else }}
{{- .Values.replicaCount | int64 }}
{{- end }}
{{- end }}

{{- /* Files from values or a ConfigMap: value, variable and name in the pod. */ -}}
{{- define "llm-stage.files" -}}
template: {variable: STAGE_TEMPLATE_FILE, file: template.jinja}
messages: {variable: STAGE_MESSAGES_FILE, file: messages.yaml}
lookup: {variable: STAGE_LOOKUP_FILE, file: lookup.yaml}
responseSchema: {variable: STAGE_RESPONSE_SCHEMA_FILE, file: response-schema.json}
prices: {variable: STAGE_PRICES_FILE, file: prices.yaml}
{{- end }}

{{- /* Whose files and keys there are: the pod's, for all stages, without a name, and those of each of several. `prefix` begins
the names of their files. */ -}}
{{- define "llm-stage.scopes" -}}
{{- $common := dict "name" "" "prefix" "" "values" (pick .Values "template" "messages" "lookup" "responseSchema" "prices" "llm") }}
{{- $scopes := list $common }}
{{- range $name, $own := include "llm-stage.stages" . | fromYaml }}
{{- $scopes = append $scopes (dict "name" $name "prefix" (printf "%s." $name) "values" $own) }}
{{- end }}
{{- dict "scopes" $scopes | toYaml }}
{{- end }}

{{- /* Names and contents of the files from values. */ -}}
{{- define "llm-stage.fileData" -}}
{{- $files := dict }}
{{- range $scope := (include "llm-stage.scopes" . | fromYaml).scopes }}
{{- range $value, $f := include "llm-stage.files" $ | fromYaml }}
{{- with (get $scope.values $value | default dict).content }}
{{- $_ := set $files (printf "%s%s" $scope.prefix $f.file) (kindIs "string" . | ternary . (toPrettyJson .)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with include "llm-stage.stagesFile" . }}{{ $_ := set $files "stages.yaml" . }}{{ end }}
{{- $files | toYaml }}
{{- end }}

{{- /* Files from secrets: stage, if it is that of one of several, variable, secret, key in it and name in the pod. */ -}}
{{- define "llm-stage.secretFiles" -}}
{{- $files := list }}
{{- range $scope := (include "llm-stage.scopes" . | fromYaml).scopes }}
{{- with $scope.values.llm }}
{{- if .existingSecret }}
{{- $files = append $files (dict "stage" $scope.name "variable" "STAGE_LLM_API_KEY_FILE" "secret" .existingSecret "key" (.key | default "api-key") "file" (printf "%sllm-api-key" $scope.prefix)) }}
{{- end }}
{{- range $provider, $source := .providers }}
{{- $variable := printf "STAGE_LLM_%s_API_KEY_FILE" ($provider | upper | replace "-" "_") }}
{{- $files = append $files (dict "stage" $scope.name "variable" $variable "secret" $source.existingSecret "key" ($source.key | default "api-key") "file" (printf "%sllm-%s-api-key" $scope.prefix $provider)) }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.nats }}
{{- if .existingSecret }}
{{- $variables := dict "creds" "STAGE_NATS_CREDS" "nkey" "STAGE_NATS_NKEY" "token" "STAGE_NATS_TOKEN_FILE" "password" "STAGE_NATS_PASSWORD_FILE" }}
{{- range $what := list "creds" "nkey" "token" "password" }}
{{- with get $.Values.nats.keys $what }}
{{- $files = append $files (dict "stage" "" "variable" (get $variables $what) "secret" $.Values.nats.existingSecret "key" . "file" (printf "nats-%s" $what)) }}
{{- end }}
{{- end }}
{{- end }}
{{- if .tls.existingSecret }}
{{- $variables := dict "ca" "STAGE_NATS_TLS_CA" "cert" "STAGE_NATS_TLS_CERT" "key" "STAGE_NATS_TLS_KEY" }}
{{- range $what := list "ca" "cert" "key" }}
{{- with get $.Values.nats.tls.keys $what }}
{{- $files = append $files (dict "stage" "" "variable" (get $variables $what) "secret" $.Values.nats.tls.existingSecret "key" . "file" (printf "nats-tls-%s" $what)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- dict "files" $files | toYaml }}
{{- end }}

{{- /* Names of the services, which a browser inside the cluster may use, and those of http.hosts. */ -}}
{{- define "llm-stage.hosts" -}}
{{- $services := list (include "llm-stage.fullname" .) }}
{{- if ne (include "llm-stage.partitions" .) "1" }}
{{- $services = append $services (printf "*.%s-pods" (first $services)) }}
{{- end }}
{{- $hosts := list }}
{{- range $services }}
{{- $full := printf "%s.%s" . $.Release.Namespace }}
{{- $hosts = concat $hosts (list . $full (printf "%s.svc" $full) (printf "%s.svc.cluster.local" $full)) }}
{{- end }}
{{- concat $hosts (.Values.http.hosts | default list) | join "," }}
{{- end }}

{{- /* Variables that the chart sets from values other than config: of files and keys by the name of the stage, those of all
without one. */ -}}
{{- define "llm-stage.pathsOf" -}}
{{- $all := dict }}
{{- range $scope := (include "llm-stage.scopes" . | fromYaml).scopes }}
{{- $paths := dict }}
{{- range $value, $f := include "llm-stage.files" $ | fromYaml }}
{{- with get $scope.values $value }}
{{- if or .content .existingConfigMap }}{{ $_ := set $paths $f.variable (printf "/etc/stage/files/%s%s" $scope.prefix $f.file) }}{{ end }}
{{- end }}
{{- end }}
{{- $_ := set $all $scope.name $paths }}
{{- end }}
{{- range (include "llm-stage.secretFiles" . | fromYaml).files }}
{{- $_ := set (get $all .stage) .variable (printf "/etc/stage/secrets/%s" .file) }}
{{- end }}
{{- $all | toYaml }}
{{- end }}

{{- define "llm-stage.ownEnvironment" -}}
{{- $env := dict "STAGE_NATS_URL" .Values.nats.url "STAGE_HTTP_ADDR" (printf ":%d" (int64 .Values.http.port)) "STAGE_HTTP_HOSTS" (include "llm-stage.hosts" .) }}
{{- if (.Values.control).enabled }}{{ $_ := set $env "STAGE_CONTROL" "true" }}{{ end }}
{{- merge $env (get (include "llm-stage.pathsOf" . | fromYaml) "") | toYaml }}
{{- end }}

{{- /* The list for `stage run --stages`, with what each of several stages has of its own; empty for one. In quotes a value is
the same text in YAML as in JSON. */ -}}
{{- define "llm-stage.stagesFile" -}}
{{- $paths := include "llm-stage.pathsOf" . | fromYaml }}
{{- range $name, $own := include "llm-stage.stages" . | fromYaml }}
{{- $settings := get $paths $name }}
{{- range $variable, $value := $own.config }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $settings $variable (include "llm-stage.text" $value) }}{{ end }}
{{- end }}
{{- printf "- name: %s\n" ($name | quote) }}
{{- range $variable, $value := $settings }}
{{- printf "  %s: %s\n" (trimPrefix "STAGE_" $variable | lower) (toRawJson $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The whole environment of the stage, except extraEnv. */ -}}
{{- define "llm-stage.environment" -}}
{{- $env := include "llm-stage.ownEnvironment" . | fromYaml }}
{{- with include "llm-stage.windowBytes" . }}{{ $_ := set $env "STAGE_WINDOW_BYTES" . }}{{ end }}
{{- range $name, $value := .Values.config }}
{{- if not (kindIs "invalid" $value) }}{{ $_ := set $env $name (include "llm-stage.text" $value) }}{{ end }}
{{- end }}
{{- $env | toYaml }}
{{- end }}
