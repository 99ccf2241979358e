# Steps that run at the same time. Sourced after common.sh.
# shellcheck shell=bash
# shellcheck disable=SC2154

# together NAME FUNCTION [NAME FUNCTION]...: runs the functions at the same time. Meanwhile it shows
# the last line of each log, on a terminal in place, otherwise twice a minute. When one function
# fails, it ends the others.
together() {
  local names=() files=() pids=() started index status=0 reported=$SECONDS failed='' alive line
  started=$(now)
  say "==> $(local text='' i; for ((i = 1; i <= $#; i += 2)); do text+="${text:+, }${!i}"; done; echo "$text")"
  while [ $# -gt 0 ]; do
    names+=("$1")
    files+=("$(log_of "$1")")
    # The loop below may read the log before the function writes to it.
    : > "${files[-1]}"
    "$2" > "${files[-1]}" 2>&1 < /dev/null &
    pids+=($!)
    shift 2
  done
  # Ctrl-C does not reach processes in the background, so the trap ends them.
  # shellcheck disable=SC2064
  trap "for pid in ${pids[*]}; do kill \$(descendants \$pid) 2> /dev/null; done; exit 130" INT TERM
  local ended=()
  while :; do
    alive=0
    for index in "${!pids[@]}"; do
      [ -z "${ended[$index]:-}" ] || continue
      if kill -0 "${pids[$index]}" 2> /dev/null; then alive=$((alive + 1)); continue; fi
      ended[index]=1
      if wait "${pids[$index]}"; then clear_line; say "    ${names[$index]}: done after $(since "$started")"; else status=$? failed=$index; break 2; fi
    done
    [ "$alive" -gt 0 ] || break
    line=
    for index in "${!pids[@]}"; do
      [ -n "${ended[$index]:-}" ] || line+="${line:+; }$(tail -n 1 "${files[$index]}" 2> /dev/null | cut -c1-90)"
    done
    if [ -t 1 ]; then clear_line; printf '    %s' "${line:0:$(($(tput cols 2> /dev/null || echo 100) - 5))}"
    elif [ $((SECONDS - reported)) -ge 30 ]; then reported=$SECONDS; say "    ... $(since "$started"): $line"; fi
    sleep 1
  done
  clear_line
  trap - INT TERM
  if [ -n "$failed" ]; then
    for index in "${!pids[@]}"; do
      # shellcheck disable=SC2046
      if [ "$index" != "$failed" ]; then kill $(descendants "${pids[$index]}") 2> /dev/null || true; wait "${pids[$index]}" 2> /dev/null || true; fi
    done
    tail -n "${STEP_TAIL:-60}" "${files[$failed]}" | sed 's/^/    | /'
    say "    ${names[$failed]} failed after $(since "$started"), exit code $status; all of it: ${files[$failed]}"
  fi
  return "$status"
}
clear_line() { [ ! -t 1 ] || printf '\r\033[K'; }
