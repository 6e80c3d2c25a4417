{{- define "llm-stage.probe" -}}
httpGet:
  path: {{ .path }}
  port: http
{{ toYaml .probe }}
{{- end }}

{{- define "llm-stage.volumeMounts" -}}
{{- if include "llm-stage.fileSources" . }}
- name: files
  mountPath: /etc/stage/files
  readOnly: true
{{- end }}
{{- if (include "llm-stage.secretFiles" . | fromYaml).files }}
- name: secrets
  mountPath: /etc/stage/secrets
  readOnly: true
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "llm-stage.fileSources" -}}
{{- range $scope := (include "llm-stage.scopes" . | fromYaml).scopes }}
{{- range $value, $f := include "llm-stage.files" $ | fromYaml }}
{{- $file := printf "%s%s" $scope.prefix $f.file }}
{{- with get $scope.values $value }}
{{- if .existingConfigMap }}
- configMap:
    name: {{ .existingConfigMap }}
    items:
      - key: {{ .key | default $f.file | quote }}
        path: {{ $file }}
{{- else if .content }}
- configMap:
    name: {{ include "llm-stage.fullname" $ }}-files
    items:
      - key: {{ $file }}
        path: {{ $file }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if include "llm-stage.stagesFile" . }}
- configMap:
    name: {{ include "llm-stage.fullname" . }}-files
    items:
      - key: stages.yaml
        path: stages.yaml
{{- end }}
{{- end }}

{{- define "llm-stage.secretVolume" -}}
- name: secrets
  projected:
    defaultMode: 0440
    sources:
      {{- range (include "llm-stage.secretFiles" . | fromYaml).files }}
      - secret:
          name: {{ .secret }}
          items:
            - key: {{ .key | quote }}
              path: {{ .file }}
      {{- end }}
{{- end }}

{{- define "llm-stage.volumes" -}}
{{- with include "llm-stage.fileSources" . | trim }}
- name: files
  projected:
    defaultMode: 0444
    sources:
      {{- . | nindent 6 }}
{{- end }}
{{- if (include "llm-stage.secretFiles" . | fromYaml).files }}
{{ include "llm-stage.secretVolume" . }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* What the containers of the stage and of the test have in common. */ -}}
{{- define "llm-stage.container" -}}
image: {{ include "llm-stage.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
envFrom:
  - configMapRef:
      name: {{ include "llm-stage.fullname" . }}
  {{- with .Values.extraEnvFrom }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with include "llm-stage.volumeMounts" . | trim }}
volumeMounts:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* What a command needs to work for several stages, ready to be appended to its arguments. */ -}}
{{- define "llm-stage.stagesFlag" -}}
{{- if include "llm-stage.stagesFile" . }}, --stages, /etc/stage/files/stages.yaml{{ end }}
{{- end }}

{{- define "llm-stage.podBasics" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "llm-stage.podTemplate" -}}
metadata:
  labels:
    {{- $labels := include "llm-stage.labels" . | fromYaml }}
    {{- /* A new version of the chart alone must not replace the pods. */ -}}
    {{- merge (omit $labels "helm.sh/chart") .Values.podLabels | toYaml | nindent 4 }}
  annotations:
    checksum/config: {{ include "llm-stage.environment" . | sha256sum }}
    checksum/files: {{ include "llm-stage.fileData" . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "llm-stage.serviceAccountName" . }}
  {{- include "llm-stage.podBasics" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ include "llm-stage.gracePeriod" . }}
  {{- with .Values.priorityClassName }}
  priorityClassName: {{ . }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  topologySpreadConstraints:
    {{- if .Values.topologySpreadConstraints }}
    {{- toYaml .Values.topologySpreadConstraints | nindent 4 }}
    {{- else }}
    {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
    - maxSkew: 1
      topologyKey: {{ . }}
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "llm-stage.selectorLabels" $ | nindent 10 }}
    {{- end }}
    {{- end }}
  containers:
    - name: stage
      {{- include "llm-stage.container" . | nindent 6 }}
      args: [run{{ include "llm-stage.stagesFlag" . }}]
      {{- with .Values.extraEnv }}
      env:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      ports:
        - name: http
          containerPort: {{ .Values.http.port }}
          protocol: TCP
      startupProbe:
        {{- include "llm-stage.probe" (dict "path" "/healthz" "probe" .Values.startupProbe) | nindent 8 }}
      livenessProbe:
        {{- include "llm-stage.probe" (dict "path" "/healthz" "probe" .Values.livenessProbe) | nindent 8 }}
      readinessProbe:
        {{- include "llm-stage.probe" (dict "path" "/readyz" "probe" .Values.readinessProbe) | nindent 8 }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
  {{- with include "llm-stage.volumes" . | trim }}
  volumes:
    {{- . | nindent 4 }}
  {{- end }}
{{- end }}
