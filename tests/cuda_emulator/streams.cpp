// Contexts, streams, events and graphs: when what was asked for is done. A stream does its work at once; with
// TVMDML_EMULATED_LAZY=1, when something waits for it, and then only what was waited for, so that a wait which is missing shows.
#include "streams.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace tvmdml_emulator {

namespace {

std::set<std::shared_ptr<Capture>> &captures = *new std::set<std::shared_ptr<Capture>>;  // those under way; never destroyed

void step(Stream &stream) {
  Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  for (const Point &point : work.after) reach(point);
  Context &context = *stream.context;
  if (context.fault == CUDA_SUCCESS) context.fault = static_cast<Code>(work.run());
  stream.done++;
}

void append(Stream &stream, Run run) {
  Capture &capture = *stream.capture;
  require(!capture.invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  capture.nodes.push_back({std::move(run), stream.tip});
  stream.tip = {capture.nodes.size() - 1};
}

}  // namespace

bool lazy() {
  const char *value = getenv("TVMDML_EMULATED_LAZY");
  return value && strcmp(value, "1") == 0;
}

std::vector<std::shared_ptr<Stream>> Context::others() const {
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto &entry : streams) found.push_back(entry.second);
  for (const auto &entry : per_thread) found.push_back(entry.second);
  return found;
}

Capture *implicit(const Stream &stream) {
  if (!stream.legacy) return nullptr;
  for (const auto &other : stream.context->others())
    if (other->blocking && other->capture) return other->capture.get();
  return nullptr;
}

void submit(Stream &stream, Run run, std::vector<Point> after) {
  if (stream.capture) return append(stream, std::move(run));
  if (Capture *const capture = implicit(stream)) {
    capture->invalid = true;
    fail(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  Context &context = *stream.context;
  if (stream.legacy) {
    for (const auto &other : context.others())
      if (other->blocking) after.push_back(other->end());
  } else if (stream.blocking) {
    after.push_back(context.legacy->end());
  }
  stream.queue.push_back({std::move(run), std::move(after)});
  stream.asked++;
  if (!lazy()) reach(stream.end());
}

void reach(const Point &point) {
  while (point.stream && point.stream->done < point.number) step(*point.stream);
}

void finish(Context &context) {
  reach(context.legacy->end());
  for (const auto &stream : context.others()) reach(stream->end());
}

bool poll(const Point &point) {
  if (!point.stream || point.stream->done >= point.number) return true;
  step(*point.stream);
  return false;
}

// -- Capture ----------------------------------------------------------------------------------------------------------

int &thread_capture_mode() {
  static thread_local int mode = 0;
  return mode;
}

void refuse_in_capture() {
  const int mode = thread_capture_mode();
  bool refused = false;
  for (const auto &capture : captures) {
    const bool own = capture->owner == std::this_thread::get_id() && capture->mode != 2;
    if (mode == 2 || !(own || (mode == 0 && capture->mode == 0))) continue;
    capture->invalid = refused = true;
  }
  if (refused) fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void end(Context &context) {
  finish(context);
  for (const auto &stream : context.others()) captures.erase(stream->capture);
  context.streams.clear();
  context.per_thread.clear();
}

void begin_capture(Stream &stream, int mode) {
  require(mode >= 0 && mode <= 2, CUDA_ERROR_INVALID_VALUE);
  require(!stream.legacy, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  require(!stream.capture, CUDA_ERROR_INVALID_VALUE);
  stream.capture = std::make_shared<Capture>();
  stream.capture->mode = mode;
  stream.capture->owner = std::this_thread::get_id();
  stream.capture->origin = &stream;
  stream.capture->streams.insert(&stream);
  stream.tip.clear();
  captures.insert(stream.capture);
}

std::vector<Run> end_capture(Stream &stream) {
  const std::shared_ptr<Capture> capture = stream.capture;
  require(capture != nullptr, CUDA_ERROR_INVALID_VALUE);
  require(capture->origin == &stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  require(capture->mode == 2 || capture->owner == std::this_thread::get_id(), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  captures.erase(capture);
  std::vector<bool> joined(capture->nodes.size());
  const auto mark = [&](const std::vector<size_t> &nodes) {
    for (const size_t node : nodes) joined[node] = true;
  };
  mark(stream.tip);
  for (size_t k = joined.size(); k--;)
    if (joined[k]) mark(capture->nodes[k].after);
  for (Stream *const member : capture->streams) {
    member->capture = nullptr;
    member->tip.clear();
  }
  require(!capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  require(std::find(joined.begin(), joined.end(), false) == joined.end(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  std::vector<Run> runs;
  for (auto &node : capture->nodes) runs.push_back(std::move(node.run));
  return runs;
}

// -- Events -----------------------------------------------------------------------------------------------------------

void record(Event &event, Stream &stream) {
  const auto made = std::make_shared<Event::Record>();
  if (stream.capture) {
    require(!stream.capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    made->capture = stream.capture;
    made->tip = stream.tip;
  } else {
    submit(stream, [made] {
      made->time = Clock::now();
      return 0;
    });
    made->point = stream.end();
  }
  event.record = made;
}

void wait_event(Stream &stream, Event &event) {
  if (!event.record) return;
  const Event::Record &made = *event.record;
  if (!made.capture) {
    if (stream.capture) {
      stream.capture->invalid = true;
      fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    submit(stream, [] { return 0; }, {made.point});
    return;
  }
  if (stream.capture && stream.capture != made.capture) {
    stream.capture->invalid = made.capture->invalid = true;
    fail(CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  require(captures.count(made.capture) != 0, CUDA_ERROR_CAPTURED_EVENT);
  require(!stream.legacy, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  stream.capture = made.capture;
  made.capture->streams.insert(&stream);
  for (const size_t node : made.tip)
    if (std::find(stream.tip.begin(), stream.tip.end(), node) == stream.tip.end()) stream.tip.push_back(node);
}

}  // namespace tvmdml_emulator
