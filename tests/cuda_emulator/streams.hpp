// Contexts, streams, events and graphs: when what was asked for is done.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "codes.hpp"

namespace tvmdml_emulator {

using Run = std::function<int()>;  // what a stream does; a code
using Clock = std::chrono::steady_clock;

struct Context;
struct Stream;

// After the stream's first `number` pieces of work.
struct Point {
  std::shared_ptr<Stream> stream;
  uint64_t number = 0;
};

struct Work {
  Run run;
  std::vector<Point> after;
};

// What a stream's capture, and those of the streams that it reaches by events, have come to.
struct Capture {
  struct Node {
    Run run;
    std::vector<size_t> after;
  };
  int mode;
  std::thread::id owner;
  Stream *origin;
  bool invalid = false;
  std::vector<Node> nodes;
  std::set<Stream *> streams;
};

struct Stream : std::enable_shared_from_this<Stream> {
  Context *context;
  bool legacy, blocking;
  std::deque<Work> queue;
  uint64_t asked = 0, done = 0;
  std::shared_ptr<Capture> capture;
  std::vector<size_t> tip;  // the capture's nodes that its next one comes after

  Stream(Context *c, bool is_legacy, bool is_blocking) : context(c), legacy(is_legacy), blocking(is_blocking) {}
  Point end() { return {shared_from_this(), asked}; }
};

struct Event {
  struct Record {
    Point point;
    Clock::time_point time;
    std::shared_ptr<Capture> capture;  // of which stream's capture it is a part
    std::vector<size_t> tip;
  };
  Context *context;
  bool timed;
  std::shared_ptr<Record> record;  // null before the first
};

struct Graph {
  Context *context;
  std::vector<Run> runs;  // in an order that they may run in
};

struct Context {
  int device = 0, retained = 0;
  Code fault = CUDA_SUCCESS;  // ends all work of the context
  bool alive = false;
  std::shared_ptr<Stream> legacy;
  std::map<std::thread::id, std::shared_ptr<Stream>> per_thread;
  std::map<Stream *, std::shared_ptr<Stream>> streams;

  // Every stream but the legacy one.
  std::vector<std::shared_ptr<Stream>> others() const;
};

// Whether streams keep their work until something waits for it (TVMDML_EMULATED_LAZY=1).
bool lazy();

void submit(Stream &stream, Run run, std::vector<Point> after = {});
void reach(const Point &point);
void finish(Context &context);
// Whether it is reached; does one piece of work towards it where it is not.
bool poll(const Point &point);

// Ends a context's streams and what they do.
void end(Context &context);

void begin_capture(Stream &stream, int mode);
std::vector<Run> end_capture(Stream &stream);
// What is done when a call comes that no capture allows in the mode the thread is in.
void refuse_in_capture();
int &thread_capture_mode();
// The capture of a blocking stream that the legacy stream would have to wait for; null where there is none.
Capture *implicit(const Stream &stream);

void record(Event &event, Stream &stream);
void wait_event(Stream &stream, Event &event);

}  // namespace tvmdml_emulator
